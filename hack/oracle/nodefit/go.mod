// The root of a module only: hack/oracle/oracle.py builds it with the modules of hack/controlplane/v*/go.mod, so that the
// filters asked are those of the control planes that the tests run, and packages that those share are compiled once.
module hami-dra/oracle/nodefit

go 1.26.0
