"""The cluster's cards as people and meters look at them: what there is, who has how much of it, how well it is packed."""
