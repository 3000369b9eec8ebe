/**
 * A test database whose `now()` is a value that the test sets: the function reads a table, and its schema comes before that
 * of the real one.
 */
import { sql } from 'kysely'
import type { Database, Db } from '../db/connect.ts'
import { reconnect } from './app.ts'
import { createTestDatabase } from './database.ts'

export async function createDatabaseWithTestClock(): Promise<Database> {
  const database = await createTestDatabase()
  await database.pool.query(`
    create schema test_clock;
    create table test_clock.clock (at timestamptz not null);
    insert into test_clock.clock values (now());
    create function test_clock.now() returns timestamptz stable language sql as 'select at from test_clock.clock';
    alter table service_processes alter column seen_at set default test_clock.now();
    alter table sandboxes alter column created_at set default test_clock.now();
    do $$ begin
      execute format('alter database %I set search_path = test_clock, pg_catalog, public', current_database());
    end $$`)
  return reconnect(database)
}

export async function setDatabaseTime(db: Db, ms: number): Promise<void> {
  await sql`update test_clock.clock set at = to_timestamp(${ms / 1000}::float8)`.execute(db)
}
