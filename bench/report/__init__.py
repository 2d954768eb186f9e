"""`bench/REPORT.md` from the files of `bench/results/`: one table for each goal."""
