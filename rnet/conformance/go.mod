module github.com/seed-b9b531af/ramjet/rnet/conformance

go 1.26.0

require (
	github.com/gorilla/websocket v1.5.3
	github.com/seed-b9b531af/ramjet v0.0.0
	github.com/valyala/fasthttp v1.77.0
	github.com/xtaci/smux v1.5.58
	golang.org/x/crypto v0.58.0
	golang.org/x/net v0.62.0
	google.golang.org/grpc v1.85.0
)

require (
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/molecule-man/go-brrr v1.3.0 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/seed-b9b531af/ramjet => ../..
