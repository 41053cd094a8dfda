"""Child processes: started, spoken to over one pipe, and ended with everything that they started."""
