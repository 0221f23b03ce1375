// Command screenshots takes the pictures of docs/console.md, of the demo's own data.
//
//	go run ./screenshots -out ../../docs/console
//	go run ./screenshots -every -out /tmp/pictures   # every page, light and dark, to be looked at
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/console/browser"
	"github.com/bluecone-go/bluecone/ops"
)

func main() {
	out := flag.String("out", "docs/console", "folder for the pictures")
	every := flag.Bool("every", false, "every page in both themes and languages, instead of those of the documentation")
	flag.Parse()
	choose := pictures
	if *every {
		choose = everyPage
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	err := take(ctx, *out, choose)
	cancel()
	if err != nil {
		log.Fatal(err)
	}
}

// picture is one of them.
type picture struct {
	name, page string
	look       browser.Look
	prepare    func(*browser.Tab) error
}

func take(ctx context.Context, out string, choose func(order, event string) []picture) (err error) {
	path := browser.Find()
	if path == "" {
		return errors.New("no Chromium was found (as root on Debian: apt-get install chromium)")
	}
	dir, err := os.MkdirTemp("", "bluecone-screenshots-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	shop, err := browser.OpenShop(ctx, dir, "/console/", console.Anyone(console.Principal{
		Name: "anna", May: append(console.Admin(), console.PayloadView),
	}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shop.Close()) }()
	order, event, err := live(ctx, shop)
	if err != nil {
		return err
	}
	chrome, err := browser.Start(path, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, chrome.Close()) }()
	for _, p := range choose(order, event) {
		if err := shoot(ctx, chrome, shop, p, out); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func pictures(order, event string) []picture {
	wide := browser.Look{Width: 1360, Height: 900}
	dark, chinese := wide, wide
	dark.Dark, chinese.Language = true, "zh-CN"
	darkChinese := dark
	darkChinese.Language = "zh-CN"
	tall := wide
	tall.Height = 1250
	tallChinese := tall
	tallChinese.Language, tallChinese.Dark = "zh-CN", true
	short := wide
	short.Height = 560
	return []picture{
		{"overview", "", wide, nil},
		{"overview-dark", "", dark, nil},
		{"overview-zh", "", chinese, nil},
		{"overview-zh-dark", "", darkChinese, nil},
		{"forensics", "forensics?key=" + order, tall, nil},
		{"forensics-zh-dark", "forensics?key=" + order, tallChinese, nil},
		{"dead-letters", "dead", short, nil},
		{"event-dark", "event?id=" + event, dark, func(t *browser.Tab) error { return t.Click(".card details.act summary") }},
		{"consumers", "consumers", short, nil},
	}
}

// everyPage is every page there is, in English on white and in 中文 on black, and the other way round.
func everyPage(order, event string) (all []picture) {
	const bulk = "bulk-new?action=retry&consumer=PointsConsumer&deliveryStatus=DEAD"
	for _, page := range [][2]string{
		{"overview", ""},
		{"events", "events?status=DEAD"},
		{"event", "event?id=" + event},
		{"forensics", "forensics?key=" + order},
		{"consumers", "consumers"},
		{"dead", "dead"},
		{"jobs", "jobs"},
		{"instances", "instances"},
		{"bulks", "bulks"},
		{"bulk-new", bulk},
		{"bulk-running", bulk},
		{"publish", "publish"},
		{"audit", "audit"},
		{"doctor", "doctor"},
	} {
		for _, look := range []browser.Look{{}, {Dark: true}, {Language: "zh-CN"}, {Language: "zh-CN", Dark: true}} {
			name := page[0]
			if look.Dark {
				name += "-dark"
			}
			if look.Language != "" {
				name += "-zh"
			}
			look.Width, look.Height = 1360, 1250
			p := picture{name, page[1], look, nil}
			if page[0] == "bulk-running" {
				p.prepare = startBulk
			}
			all = append(all, p)
		}
	}
	return all
}

// startBulk starts the operation that the page is about, slowly.
func startBulk(t *browser.Tab) error {
	return errors.Join(
		t.Fill("form[action=bulk] [name=rate]", "1"),
		t.Fill("form[action=bulk] [name=reason]", "points service repaired"),
		t.Eval("(() => { const c = document.querySelector('form[action=bulk] [name=confirm]'); if (c) c.value = c.pattern })()", nil),
		t.Follow("form[action=bulk] button"),
		t.Until("location.pathname.endsWith('/bulk')"),
	)
}

// live gives the shop a day's life in a minute: orders, a consumer that fails, one that is paused.
func live(ctx context.Context, s *browser.Shop) (order, event string, err error) {
	var orders []string
	for range 14 {
		id, err := s.Order(ctx)
		if err != nil {
			return "", "", err
		}
		orders = append(orders, id)
	}
	if err := s.Quiet(ctx); err != nil {
		return "", "", err
	}
	pay := func(from, to int) error {
		for _, id := range orders[from:to] {
			if err := s.Pay(ctx, id); err != nil {
				return err
			}
		}
		return s.Quiet(ctx)
	}
	steps := []func() error{
		func() error { return pay(0, 6) },
		func() error { return s.Break(ctx, "PointsConsumer", "permanent") },
		func() error { return pay(6, 11) },
		func() error { return wait(ctx, 75*time.Second) }, // so that the charts have something to show
		func() error { return s.Break(ctx, "WalletConsumer", "error") },
		func() error { return s.Pay(ctx, orders[11]) },
		func() error {
			return s.App.Ops.Pause(ctx, ops.Operation{Actor: "anna", Reason: "coupon service is being moved"}, "CouponConsumer", time.Hour)
		},
		func() error { return s.Pay(ctx, orders[12]) },
		func() error { return wait(ctx, 5*time.Second) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return "", "", err
		}
	}
	dead, err := s.App.Ops.Dead(ctx)
	if err != nil || len(dead) == 0 {
		return "", "", errors.Join(err, errors.New("nothing has died"))
	}
	return orders[7], dead[0].SampleEvent, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func shoot(ctx context.Context, c *browser.Chrome, s *browser.Shop, p picture, out string) error {
	tab, err := c.Open(ctx, p.look)
	if err != nil {
		return err
	}
	if err := tab.Go(s.URL + p.page); err != nil {
		return err
	}
	if p.prepare != nil {
		if err := p.prepare(tab); err != nil {
			return err
		}
	}
	shot, err := tab.Screenshot()
	if err != nil {
		return err
	}
	small, err := reduce(shot)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o750); err != nil {
		return err
	}
	if err := tab.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, p.name+".png"), small, 0o644) //nolint:gosec // a picture for everybody
}

// reduce writes a picture with the 256 colours that it has most of, if that is smaller.
func reduce(shot []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return nil, err
	}
	paletted := image.NewPaletted(full.Bounds(), commonest(full))
	draw.Draw(paletted, full.Bounds(), full, full.Bounds().Min, draw.Src)
	var small bytes.Buffer
	enc := png.Encoder{CompressionLevel: png.BestCompression}
	if err := enc.Encode(&small, paletted); err != nil {
		return nil, err
	}
	if small.Len() < len(shot) {
		return small.Bytes(), nil
	}
	return shot, nil
}
