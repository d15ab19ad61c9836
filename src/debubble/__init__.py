"""debubble: see, measure and shrink the pipeline bubble of a training job."""
