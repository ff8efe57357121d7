"""Values that cross from stage to stage, and those that skip stages on their way."""
