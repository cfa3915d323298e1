"""What other programs have left in the place of Penstock's data: shown, and removed on request."""
