"""The read side: what each event makes of the rows, and that the rows are the fold of the log whatever happens."""
