"""Pieces of reports: tables, their Markdown, HTML and CSV, and logs read back as numbers."""
