package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/bluecone-go/bluecone/console"
)

// A console behind passwords: console.New(o, console.Config{Authorize: console.BasicAuth(check)}).
func ExampleBasicAuth() {
	check, err := console.Users(
		console.User{Name: "anna", Password: "correct horse battery", May: console.Admin()}, // from the environment, rather
		console.User{Name: "rita", Password: "staple of twelve", May: console.ReadOnly()},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	authorize := console.BasicAuth(check)
	r := httptest.NewRequest(http.MethodGet, "/bluecone/", nil)
	_, err = authorize(r)
	fmt.Println(err)
	r.SetBasicAuth("rita", "staple of twelve")
	p, err := authorize(r)
	fmt.Println(p.Name, p.Can(console.View), err)
	// Output:
	// console: the request is asked for credentials: console: the request has no valid credentials
	// rita true <nil>
}
