"""What people use: the command line."""
