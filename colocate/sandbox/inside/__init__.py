"""What runs between the caller and the program: started afresh, standard library only."""
