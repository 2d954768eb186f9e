"""What the HTTP APIs share: arrivals, failures, and streamed and resumed answers."""
