"""The library behind the workflow: grid, identity, stages, tables. Imports point downward only."""
