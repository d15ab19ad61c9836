"""Planning: the space of layouts, their judgement, the search for the best, and proof that it can be trusted."""
