"""Programs that use fxpipe, and the plain models they train."""
