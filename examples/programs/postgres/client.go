package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/seed-b9b531af/ramjet/rnet"
)

const (
	accounts = 100
	initial  = 1000 // in each
)

// client moves money between accounts.
type client struct {
	url       string
	transfers int // how many in all
	workers   int // how many at once

	dialer rnet.Dialer
	addr   string // what connect dials
	db     *sql.DB
}

// connect makes the pool, which dials when it needs a connection.
func (c *client) connect() error {
	config, err := pgx.ParseConfig(c.url)
	if err != nil {
		return err
	}
	c.addr = net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	config.DialFunc = c.dialer.DialContext // nothing else changes
	c.db = stdlib.OpenDB(*config)
	c.db.SetMaxIdleConns(c.workers)
	return nil
}

// run makes the transfers and prints how long they took.
func (c *client) run(ctx context.Context, out io.Writer) (err error) {
	if err := c.connect(); err != nil {
		return err
	}
	defer c.db.Close()
	if err := c.open(ctx); err != nil {
		return err
	}
	defer func() {
		_, dropped := c.db.ExecContext(context.WithoutCancel(ctx), "drop table ramjet_accounts")
		err = errors.Join(err, dropped)
	}()

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	begin := time.Now()
	var workers sync.WaitGroup
	for i := range c.workers {
		workers.Go(func() {
			for range (c.transfers + i) / c.workers {
				if err := c.transfer(ctx); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	workers.Wait() // ended by the transfers, which end with ctx
	if err := context.Cause(ctx); err != nil {
		return err
	}
	took := time.Since(begin)
	for _, decision := range rnet.Explain(c.addr) {
		fmt.Fprintln(out, "transport:", decision)
	}
	fmt.Fprintf(out, "%d transactions in %v, %.0f per second\n",
		c.transfers, took.Round(time.Microsecond), float64(c.transfers)/took.Seconds())
	fmt.Fprintf(out, "By %d goroutines; the database's own work is part of the time.\n", c.workers)
	return nil
}

// open opens the accounts, all of them or, after an error or an interrupt, none.
func (c *client) open(ctx context.Context) error {
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // fails after Commit
	_, err = tx.ExecContext(ctx, "create table ramjet_accounts (id int primary key, balance bigint, note text)")
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx,
		"insert into ramjet_accounts select id, $1, '' from generate_series(0, $2) as id", initial, accounts-1)
	if err != nil {
		return err
	}
	return tx.Commit()
}

// transfer moves money from one account to another, with a note that is read
// back, in one transaction, and checks that the accounts have as much as before.
func (c *client) transfer(ctx context.Context) error {
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // fails after Commit
	from, to := mathrand.N(accounts), mathrand.N(accounts)
	note := fmt.Sprintf("%0*d", mathrand.N(4000)+1, mathrand.Int())
	for _, part := range [2]struct{ id, amount int }{
		{min(from, to), 7}, {max(from, to), -7}, // in order, so that no two wait for each other
	} {
		var stored string
		err := tx.QueryRowContext(ctx,
			"update ramjet_accounts set balance = balance + $2, note = $3 where id = $1 returning note",
			part.id, part.amount, note).Scan(&stored)
		if err != nil {
			return err
		}
		if stored != note {
			return errors.New("the note came back changed")
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return c.audit(ctx)
}

// audit checks that all money is there.
func (c *client) audit(ctx context.Context) error {
	var sum int
	err := c.db.QueryRowContext(ctx, "select sum(balance) from ramjet_accounts").Scan(&sum)
	if err == nil && sum != accounts*initial {
		return fmt.Errorf("the accounts have %d together, not %d", sum, accounts*initial)
	}
	return err
}
