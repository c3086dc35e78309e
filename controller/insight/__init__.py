"""Read and explain: why a decision came out so, what another policy would bring, what is wrong with a cluster."""
