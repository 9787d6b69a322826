"""What happened: events, and the recording that catches them."""
