"""Complete systems, made only of Penstock's own parts."""
