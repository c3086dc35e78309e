"""What is wrong with a cluster that hami-dra runs in, and how to mend it: pure checks over a state that was collected before."""
