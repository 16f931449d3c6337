"""What people see of a run: the terminal while it lasts, files and pictures after it."""
