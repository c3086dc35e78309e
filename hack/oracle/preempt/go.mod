// The root of a module only, as that of nodefit: hack/oracle/oracle.py builds it with the modules of the control plane.
module hami-dra/oracle/preempt

go 1.26.0
