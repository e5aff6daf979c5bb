"""Speed and learning measurements, side by side with other implementations."""
