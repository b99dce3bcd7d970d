"""Results of the papers as functions: regret bounds, information gains and their orders."""
