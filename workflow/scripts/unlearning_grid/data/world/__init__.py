"""The embedded world: a small chat model and an RWKU-shaped data set about invented knowledge."""
