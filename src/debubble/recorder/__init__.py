"""The recorder: measures the pipeline of anybody's training job from inside, with no line of it changed."""
