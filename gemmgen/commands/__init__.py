"""What each ``gemmgen`` subcommand does, one module apiece. The command line parses words and calls these functions."""
