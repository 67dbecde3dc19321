package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect"
	coder "github.com/coder/websocket"
	"github.com/gin-gonic/gin"
	gorilla "github.com/gorilla/websocket"
	"github.com/valyala/fasthttp"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// echoBody answers with the request's body.
func echoBody(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Write(body)
}

// post sends the message and looks at the answer.
func post(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, "POST", url, bytes.NewReader(message))
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return errors.Join(err, check(body))
}

func tryHTTP(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(echoBody)}
	go server.Serve(ln)
	defer server.Close()
	transport := &http.Transport{DialContext: n.DialContext}
	defer transport.CloseIdleConnections()
	return post(ctx, &http.Client{Transport: transport}, "http://"+ln.Addr().String())
}

func tryHTTP2(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			http.Error(w, r.Proto, http.StatusHTTPVersionNotSupported)
			return
		}
		echoBody(w, r)
	}))
	server.Listener.Close()
	server.Listener, server.EnableHTTP2 = ln, true
	server.StartTLS()
	defer server.Close()
	transport := server.Client().Transport.(*http.Transport)
	transport.DialContext = n.DialContext
	defer transport.CloseIdleConnections()
	return post(ctx, server.Client(), "https://"+ln.Addr().String())
}

func tryFasthttp(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &fasthttp.Server{Handler: func(c *fasthttp.RequestCtx) { c.Write(c.PostBody()) }}
	go server.Serve(ln)
	defer server.Shutdown()
	client := fasthttp.Client{
		Dial: func(addr string) (net.Conn, error) { return n.Dial("tcp", addr) },
	}
	defer client.CloseIdleConnections()
	request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	request.SetRequestURI("http://" + ln.Addr().String())
	request.Header.SetMethod("POST")
	request.SetBody(message)
	if err := client.DoTimeout(request, response, trialTime); err != nil {
		return err
	}
	return check(response.Body())
}

func tryGin(ctx context.Context, n *network) error {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.POST("/", func(c *gin.Context) { echoBody(c.Writer, c.Request) })
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	go engine.RunListener(ln)
	transport := &http.Transport{DialContext: n.DialContext}
	defer transport.CloseIdleConnections()
	return post(ctx, &http.Client{Transport: transport}, "http://"+ln.Addr().String())
}

func tryGorilla(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := (&gorilla.Upgrader{}).Upgrade(w, r, nil)
		if err != nil {
			return // it has answered
		}
		defer conn.Close()
		if kind, text, err := conn.ReadMessage(); err == nil {
			conn.WriteMessage(kind, text)
		}
	})}
	go server.Serve(ln)
	defer server.Close()
	dialer := gorilla.Dialer{NetDialContext: n.DialContext}
	conn, _, err := dialer.DialContext(ctx, "ws://"+ln.Addr().String(), nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.WriteMessage(gorilla.BinaryMessage, message); err != nil {
		return err
	}
	_, answer, err := conn.ReadMessage()
	return errors.Join(err, check(answer))
}

func tryCoder(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := coder.Accept(w, r, nil)
		if err != nil {
			return // it has answered
		}
		defer conn.CloseNow()
		conn.SetReadLimit(-1)
		if kind, text, err := conn.Read(r.Context()); err == nil {
			conn.Write(r.Context(), kind, text)
		}
		conn.Close(coder.StatusNormalClosure, "")
	})}
	go server.Serve(ln)
	defer server.Close()
	transport := &http.Transport{DialContext: n.DialContext}
	conn, _, err := coder.Dial(ctx, "ws://"+ln.Addr().String(), &coder.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	conn.SetReadLimit(-1)
	if err := conn.Write(ctx, coder.MessageBinary, message); err != nil {
		return err
	}
	_, answer, err := conn.Read(ctx)
	return errors.Join(err, check(answer))
}

func tryConnect(ctx context.Context, n *network) error {
	const procedure = "/echo.Echo/Echo"
	mux := http.NewServeMux()
	mux.Handle(procedure, connect.NewUnaryHandler(procedure,
		func(_ context.Context, r *connect.Request[wrapperspb.BytesValue]) (*connect.Response[wrapperspb.BytesValue], error) {
			return connect.NewResponse(wrapperspb.Bytes(r.Msg.GetValue())), nil
		}))
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux}
	go server.Serve(ln)
	defer server.Close()
	transport := &http.Transport{DialContext: n.DialContext}
	defer transport.CloseIdleConnections()
	client := connect.NewClient[wrapperspb.BytesValue, wrapperspb.BytesValue](
		&http.Client{Transport: transport}, fmt.Sprintf("http://%s%s", ln.Addr(), procedure))
	answer, err := client.CallUnary(ctx, connect.NewRequest(wrapperspb.Bytes(message)))
	if err != nil {
		return err
	}
	return check(answer.Msg.GetValue())
}
