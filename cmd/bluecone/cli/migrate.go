package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/uptrace/bun/dialect"

	"github.com/bluecone-go/bluecone/migrations"
)

// migrateCommands are the commands about the tables.
type migrateCommands struct{ *app }

// migrate looks after the tables.
func (a migrateCommands) migrate() *cobra.Command {
	return group("migrate", "Make the tables, or print their SQL", a.migrateUp(), a.migrateStatus(), a.migratePrint())
}

type creating struct{}

// MayCreate tells [Config.Open] whether the command may make a database that is not there yet:
// only "migrate up" may.
func MayCreate(ctx context.Context) bool { return ctx.Value(creating{}) != nil }

func (a migrateCommands) migrateUp() *cobra.Command {
	w := &write{}
	cmd := &cobra.Command{
		Use: "up", Short: "Apply the migrations that are pending", Args: takes(),
		Long: `Applies the migrations that are pending. Any number of processes may do so at once, and it may be repeated.
It leaves nothing in the audit log, which it makes itself.`,
		Example: "  bluecone migrate up --dry-run\n  bluecone migrate up",
	}
	cmd.Flags().BoolVar(&w.dryRun, "dry-run", false, "change nothing, only say what is pending")
	up := a.run(func(ctx context.Context, c *call) error {
		pending, err := c.pending(ctx)
		if err != nil {
			return err
		}
		if !w.dryRun {
			if err := c.meanwhile("migrate", func() error { return migrations.Up(ctx, c.DB) }); err != nil {
				return err
			}
		}
		text := "every migration is applied already"
		switch {
		case len(pending) > 0 && w.dryRun:
			text = "would apply: " + strings.Join(pending, ", ")
		case len(pending) > 0:
			text = "applied: " + strings.Join(pending, ", ")
		}
		return c.done(w, "migrate", "", "%s", text)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !w.dryRun {
			cmd.SetContext(context.WithValue(cmd.Context(), creating{}, true))
		}
		return up(cmd, args)
	}
	return cmd
}

func (c *call) pending(ctx context.Context) ([]string, error) {
	all, err := migrations.Status(ctx, c.DB)
	var pending []string
	for _, m := range all {
		if m.AppliedAt.IsZero() {
			pending = append(pending, fmt.Sprintf("%04d_%s", m.Version, m.Name))
		}
	}
	return pending, err
}

func (a migrateCommands) migrateStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "The migrations, and when each was applied", Args: takes(), Example: "  bluecone migrate status",
		RunE: a.run(func(ctx context.Context, c *call) error {
			all, err := migrations.Status(ctx, c.DB)
			if err != nil {
				return err
			}
			v := view{columns: []string{"version", "name", "appliedAt"}}
			list, missing := make([]map[string]any, len(all)), 0
			for i, m := range all {
				var applied any = m.AppliedAt
				if m.AppliedAt.IsZero() {
					if missing++; c.format != "csv" {
						applied = "not applied"
					}
				}
				v.add(m.Version, m.Name, applied)
				list[i] = map[string]any{"version": m.Version, "name": m.Name}
				if !m.AppliedAt.IsZero() {
					list[i]["appliedAt"] = m.AppliedAt
				}
			}
			if err := c.print(v, list); err != nil || missing == 0 {
				return err
			}
			c.note("%s not applied: %s up", map[bool]string{true: "1 migration is", false: strconv.Itoa(missing) + " migrations are"}[missing == 1],
				c.cmd.Parent().CommandPath())
			return nil
		}),
	}
}

func (a migrateCommands) migratePrint() *cobra.Command {
	which := choice{of: []string{"mysql", "postgres", "sqlite"}}
	cmd := &cobra.Command{
		Use: "print", Short: "Print the SQL of the migrations, for a tool of your own", Args: takes(),
		Example: "  bluecone migrate print --dialect mysql > bluecone.sql",
	}
	cmd.Flags().Var(&which, "dialect", "mysql (MariaDB too), postgres or sqlite (default: that of the database)")
	complete(cmd, "dialect", which.of...)
	opened := a.run(func(_ context.Context, c *call) error {
		return printSQL(c.cmd, map[dialect.Name]string{
			dialect.MySQL: "mysql", dialect.PG: "postgres",
			dialect.SQLite: "sqlite",
		}[c.DB.Dialect().Name()])
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if which.is != "" {
			return printSQL(cmd, which.is)
		}
		err := opened(cmd, args)
		if errors.Is(err, ErrUsage) {
			err = fmt.Errorf("%w; or say --dialect mysql, postgres or sqlite, without a database", err)
		}
		return err
	}
	return cmd
}

func printSQL(cmd *cobra.Command, name string) error {
	files, err := migrations.FS(name)
	if err != nil {
		return err
	}
	list, err := fs.Glob(files, "*.sql")
	if err != nil {
		return err
	}
	for _, file := range list {
		text, err := fs.ReadFile(files, file)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "-- %s\n%s\n", file, strings.TrimSpace(string(text))); err != nil {
			return err
		}
	}
	return nil
}
