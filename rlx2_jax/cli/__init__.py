"""The command `rlx2`: one module per subcommand, each with `define_flags` and `command`."""
