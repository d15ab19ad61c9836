"""What is known of a job before it runs: stated sizes, and the layout that they amount to."""
