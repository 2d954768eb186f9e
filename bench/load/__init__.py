"""`tandem bench`: an open-loop load and its report. The only part that the product imports."""
