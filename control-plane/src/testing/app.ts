/** The whole control plane for a test: real database and real app, used through its API. */
import { randomUUID } from 'node:crypto'
import type { AddressInfo } from 'node:net'
import { after } from 'node:test'
import { createLog } from '@warren/kit/log'
import { buildApp } from '../app.ts'
import { type Config, readControlPlaneConfig } from '../config.ts'
import { createDeps } from '../create-deps.ts'
import { connectDatabase, type Database } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { CredentialCache } from '../http/credential-cache.ts'
import type { App } from '../http/server.ts'
import { watchCredentialChanges } from '../http/watch-credentials.ts'
import { createMetrics } from '../observe/metrics.ts'
import { createUser, type NewUser } from '../users/create.ts'
import { createApiKey } from '../users/keys.ts'
import { createTestDatabase } from './database.ts'
import { createTestSecrets } from './secrets.ts'

export type TestApp = {
  app: App
  deps: Deps
  /** Creates a user with an API key, and the headers to send as that user. */
  user(options?: Partial<NewUser>): Promise<TestUser>
  get(path: string, key?: string): Promise<TestResponse>
}
export type TestUser = { id: string; key: string; keyId: string; headers: { 'x-api-key': string } }
// biome-ignore lint/suspicious/noExplicitAny: tests assert on the response itself.
export type TestResponse = { status: number; headers: Record<string, unknown>; body: any }

export async function createTestApp(
  options: {
    config?: Partial<Config>
    database?: Database
    routes?: (app: App, deps: Deps) => void
    /** False where there is no database to watch. */
    watchCredentials?: boolean
  } = {},
): Promise<TestApp> {
  const database = options.database ?? (await createTestDatabase())
  const deps = createTestDeps(database, options.config)
  after(() => deps.hosts.close())
  after(() => deps.tokenStreams.close())
  after(() => deps.audit.close())
  const watcher = options.watchCredentials === false ? { close() {} } : await watchCredentials(deps)
  after(() => watcher.close())
  const app = await buildApp(deps)
  options.routes?.(app, deps)
  await app.ready()
  after(() => app.close())
  return {
    app,
    deps,
    user: (user) => createTestUser(deps, user),
    async get(path, key) {
      const response = await app.inject({ url: path, headers: key === undefined ? {} : { 'x-api-key': key } })
      return { status: response.statusCode, headers: response.headers, body: response.json() }
    },
  }
}

export function createTestDeps(database: Database, config: Partial<Config> = {}): Deps {
  return createDeps({
    config: {
      ...readControlPlaneConfig({
        DATABASE_URL: database.url,
        WARREN_RATE_LIMIT: '0',
        WARREN_ALLOW_TCG_TENANTS: 'yes',
      }),
      ...config,
    },
    log: createLog({ name: 'test', level: process.env.WARREN_LOG_LEVEL ?? 'fatal', format: 'json' }),
    database,
    credentials: new CredentialCache(),
    metrics: createMetrics(database.pool),
    processId: randomUUID(),
    secrets: createTestSecrets(),
  })
}

/** Connects like another process on the same database: with a separate pool and caches. */
export const reconnect = (database: Database): Database => {
  const other = connectDatabase(database.url, { warn() {} })
  after(() => other.close())
  return other
}

async function createTestUser(deps: Deps, options: Partial<NewUser> = {}): Promise<TestUser> {
  const user = await createUser(deps.db, { name: `user-${randomUUID()}`, plan: 'pro', ...options })
  const { id: keyId, key } = await createApiKey(deps.db, user.id, 'test')
  return { id: user.id, key, keyId, headers: { 'x-api-key': key } }
}

async function watchCredentials(deps: Deps): Promise<{ close(): void }> {
  const { promise, resolve } = Promise.withResolvers<void>()
  const watcher = watchCredentialChanges(deps, resolve)
  await promise
  return watcher
}

/** For tests that cannot use inject: upgrades, raw sockets, real clients. */
export async function listenOn(app: App): Promise<{ url: string; port: number }> {
  await app.listen({ host: '127.0.0.1', port: 0 })
  const { port } = app.server.address() as AddressInfo
  return { url: `http://127.0.0.1:${port}`, port }
}
