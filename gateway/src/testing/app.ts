/** The whole gateway for a test: real database, real chains where the test starts them, used through its API. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import { createLog } from '@warren/kit/log'
import { buildApp } from '../app.ts'
import { ensureRecipient } from '../chains/recipients.ts'
import { type Config, readGatewayConfig } from '../config.ts'
import { createDeps } from '../create-deps.ts'
import type { Database } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import type { App } from '../http/server.ts'
import { createTestDatabase } from './database.ts'

export const PAY_TO = '0x00000000000000000000000000000000DeaDBeef'
// biome-ignore lint/suspicious/noExplicitAny: tests assert on the response itself.
export type TestResponse = { status: number; headers: Record<string, unknown>; body: any }
export type TestRequest = {
  method?: string
  url: string
  headers?: Record<string, string>
  body?: unknown
  ip?: string
}

export type TestGateway = {
  app: App
  deps: Deps
  request(request: TestRequest): Promise<TestResponse>
}

export type TestOptions = {
  config?: Partial<Config>
  database?: Database
  now?: () => Date
  routes?: (app: App, deps: Deps) => void
  log?: Deps['log']
}

export async function createTestGateway(options: TestOptions = {}): Promise<TestGateway> {
  const database = options.database ?? (await createTestDatabase())
  const deps = await createTestDeps(database, options)
  const app = await buildApp(deps)
  options.routes?.(app, deps)
  await app.ready()
  after(() => app.close())
  return {
    app,
    deps,
    async request({ method = 'GET', url, headers = {}, body, ip }) {
      const response = await app.inject({
        method: method as 'GET',
        url,
        headers,
        ...(body === undefined ? {} : { payload: typeof body === 'string' ? body : JSON.stringify(body) }),
        ...(ip === undefined ? {} : { remoteAddress: ip }),
      })
      const isJson = String(response.headers['content-type']).startsWith('application/json')
      return {
        status: response.statusCode,
        headers: response.headers,
        body: isJson ? response.json() : response.body,
      }
    },
  }
}

export async function createTestDeps(database: Database, options: TestOptions = {}): Promise<Deps> {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'warren-gateway-'))
  after(() => rm(dataDir, { recursive: true, force: true }))
  const env = {
    DATABASE_URL: database.url,
    WARREN_GATEWAY_RATE_LIMIT: '0',
    WARREN_GATEWAY_ADDRESS_RATE_LIMIT: '0',
    WARREN_GATEWAY_PAY_TO: PAY_TO,
    // Nothing listens there. Tests of payments name the chains that they started.
    WARREN_GATEWAY_RPC_ARBITRUM: 'http://127.0.0.1:1',
    WARREN_GATEWAY_RPC_BASE: 'http://127.0.0.1:1',
    WARREN_GATEWAY_PAY_TO_SINCE: '2020-01-01T00:00:00Z',
    WARREN_GATEWAY_DATA_DIR: dataDir,
  }
  const log = options.log ?? createLog({ name: 'test', level: process.env.WARREN_LOG_LEVEL ?? 'fatal', format: 'json' })
  const deps = await createDeps({
    config: { ...readGatewayConfig(env), ...options.config },
    log,
    database,
    ...(options.now ? { now: options.now } : {}),
  })
  await ensureRecipient(deps)
  return deps
}
