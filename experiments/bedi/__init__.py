"""Tables 2 to 4 of Bedi et al.: compressed GP bandits."""
