/** How much of Fastify's speed remains when a request is authenticated, counted, looked up and rendered. */
import { request } from 'undici'
import { insertSandbox } from '../../../control-plane/src/testing/sandboxes.ts'
import { type Account, createAccount, withDatabase } from '../fixtures/accounts.ts'
import { startBareFastify } from '../fixtures/bare-fastify.ts'
import { service } from '../fixtures/service.ts'
import { interleave } from '../interleave.ts'
import { type LoadGenerator, loadGenerator } from '../load/generator.ts'
import type { SliceResult } from '../load/slice.ts'
import type { Fixture, Measurement, Row, Run, Subject } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { SMALL } from '../vm/instance.ts'

/** Enough to keep one server process busy, few enough for a small machine. */
const CONNECTIONS = 64
/** Short, so that the machine's noise affects both candidates; still thousands of requests. */
const SLICE_MS = 250
/** Until the compiler has optimised the hot path. */
const WARM_UP_MS = 3_000

const TARGET = { ratio: '>=', value: 0.5 } as const
const BASELINE = 'bare Fastify, same bytes'

export const whoamiRow: Row = {
  name: 'whoami',
  what: 'GET /v1/whoami with an API key, against a bare Fastify route with the same bytes',
  unit: 'req/s',
  baseline: BASELINE,
  target: TARGET,
  measure: (run) => measureRate(run, { route: '/v1/whoami', path: () => '/v1/whoami' }),
  comparison: {
    open: async (run, api) => ({
      takeTurn: await openLoad(run, api, '/v1/whoami'),
      async close() {},
    }),
  },
}

export const getSandboxRow: Row = {
  name: 'get-sandbox',
  what: 'GET /v1/sandboxes/{id} of a sandbox with every field set, against a bare Fastify route with the same bytes',
  unit: 'req/s',
  baseline: BASELINE,
  target: TARGET,
  measure: (run) =>
    measureRate(run, { route: '/v1/sandboxes/:id', path: ({ sandboxId }) => `/v1/sandboxes/${sandboxId}` }),
  comparison: {
    async open(run, api) {
      const { id } = await api.create(SMALL, FULL_SANDBOX)
      // Nothing changes the response of a paused sandbox.
      await api.post(`/v1/sandboxes/${id}/pause`)
      await api.until(id, 'paused')
      return {
        takeTurn: await openLoad(run, api, `/v1/sandboxes/${id}`),
        close: () => api.delete(id),
      }
    },
  },
}

type Tenant = Account & { sandboxId: string }

/** A user with a few sandboxes, one of which has every field set. None is in a state that a sweep works on. */
const tenant: Fixture<Tenant> = async (run) => {
  const { databaseUrl } = await run.open(service)
  return withDatabase(databaseUrl, async (db) => {
    const account = await createAccount(db, 'bench-tenant')
    for (const status of ['paused', 'paused', 'error', 'destroyed', 'failed'] as const) {
      await insertSandbox(db, account.id, status)
    }
    const { envs, ...settings } = FULL_SANDBOX
    const { id } = await insertSandbox(db, account.id, 'paused', {
      ...settings,
      ...FULL_STATE,
      env_names: Object.keys(envs),
    })
    return { ...account, sandboxId: id }
  })
}

/** What a client can set. */
const FULL_SANDBOX = {
  name: 'build-agent-17',
  ingress_enabled: true,
  auto_pause_after_seconds: 900,
  envs: {
    CI: '1',
    DATABASE_URL: 'postgres://db.example.com/app',
    GIT_AUTHOR_EMAIL: 'ada@example.com',
    GIT_AUTHOR_NAME: 'Ada',
    NODE_ENV: 'test',
    OPENAI_API_KEY: 'none',
    TZ: 'UTC',
  },
  ssh_pubkeys: [
    'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJlbmNobWFya2tleW51bWJlcm9uZW9mdHdvYWFhYWFh ada@laptop',
    'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJlbmNobWFya2tleW51bWJlcnR3b29mdHdvYWFhYWFh ci@runner',
  ],
  egress: ['github.com', '*.githubusercontent.com', 'packages.example.com', 'code.example.org', 'files.example.org'],
}

/** What Warren sets. */
const FULL_STATE: Parameters<typeof insertSandbox>[3] = {
  ip: '100.64.3.17',
  shape: 's-4vcpu-8gb',
  rootfs: 'devbox:1',
  vcpu: 4,
  mem_mib: 8192,
  disk_mib: 81_920,
  bandwidth_quota_bytes: 50 * 1024 ** 3,
  bandwidth_ingress_bytes: 1_234_567_890,
  spawn_ms: 187.4,
  running_at: new Date('2026-03-01T12:00:00.187Z'),
  paused_at: new Date('2026-03-02T08:15:00.250Z'),
  last_resumed_at: new Date('2026-03-02T09:30:00.125Z'),
}

async function measureRate(
  run: Run,
  endpoint: { route: string; path: (tenant: Tenant) => string },
): Promise<Measurement> {
  const ours = await run.open(service)
  const caller = await run.open(tenant)
  const load = await run.open(loadGenerator)
  const path = endpoint.path(caller)
  const ourUrl = ours.baseUrl + path
  const body = await readBody(ourUrl, caller.headers)

  const bare = await startBareFastify(endpoint.route, body)
  try {
    const bareUrl = bare.ready.baseUrl + path
    const send = (url: string, ms: number) => {
      run.signal.throwIfAborted()
      return load({ url, headers: caller.headers, body, connections: CONNECTIONS, ms })
    }

    run.report(`  warming up with ${CONNECTIONS} connections, ${Buffer.byteLength(body)} bytes per response`)
    for (const url of [ourUrl, bareUrl]) await send(url, WARM_UP_MS)

    return await compareRates(
      run,
      () => send(ourUrl, SLICE_MS),
      () => send(bareUrl, SLICE_MS),
    )
  } finally {
    await bare.stop()
  }
}

async function readBody(url: string, headers: Record<string, string>): Promise<string> {
  const response = await request(url, { headers })
  const body = await response.body.text()
  if (response.statusCode !== 200) throw new Error(`GET ${url} responded ${response.statusCode}: ${body}`)
  return body
}

async function compareRates(
  run: Run,
  sendOurs: () => ReturnType<LoadGenerator>,
  sendBaseline: () => ReturnType<LoadGenerator>,
): Promise<Measurement> {
  let ok = 0
  let failed = 0
  const turns = await interleave(run, {
    async ours() {
      const result = await sendOurs()
      ok += result.ok
      failed += result.failed
      return rateOf(result)
    },
    async baseline() {
      const result = await sendBaseline()
      if (result.failed > 0)
        throw new Error(`the baseline failed ${result.failed} requests, so it cannot be compared with`)
      return rateOf(result)
    },
  })
  return { ...turns, ok: ok / (ok + failed) }
}

/** Only correct responses count. */
const rateOf = ({ ok, elapsedMs }: SliceResult): number => ok / (elapsedMs / 1000)

/** Warms the server up and returns what takes a turn. */
async function openLoad(run: Run, api: Api, path: string): Promise<Subject['takeTurn']> {
  const load = await run.open(loadGenerator)
  const url = new URL(path, api.url).href
  const body = await readBody(url, api.headers)
  const send = (ms: number) => load({ url, headers: api.headers, body, connections: CONNECTIONS, ms })
  await send(WARM_UP_MS)
  return async () => {
    const result = await send(SLICE_MS)
    return { samples: [rateOf(result)], failed: result.failed }
  }
}
