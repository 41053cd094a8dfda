"""What the program prints: tables, pages of rows, progress."""
