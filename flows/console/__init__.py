"""The output of the program: tables, pages of rows, progress."""
