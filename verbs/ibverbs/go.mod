module github.com/seed-b9b531af/ramjet/verbs/ibverbs

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/seed-b9b531af/ramjet v0.0.0-00010101000000-000000000000
	github.com/stretchr/testify v1.12.1
	golang.org/x/net v0.62.0
	golang.org/x/sys v0.49.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

replace github.com/seed-b9b531af/ramjet => ../..
