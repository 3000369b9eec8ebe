module warren/dockerfile/buildkit

go 1.26

require github.com/moby/buildkit v0.34.1
