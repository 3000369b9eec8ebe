/** How much of Fastify's speed is left when a request is authenticated, counted, looked up and rendered. */
import { request } from 'undici'
import { insertSandbox } from '../../../control-plane/src/testing/sandboxes.ts'
import { type Account, createAccount, withDatabase } from '../fixtures/accounts.ts'
import { startBareFastify } from '../fixtures/bare-fastify.ts'
import { type Service, service } from '../fixtures/service.ts'
import { interleave } from '../interleave.ts'
import { type LoadGenerator, loadGenerator } from '../load/generator.ts'
import type { SliceResult } from '../load/slice.ts'
import type { Fixture, Measurement, Row, Run } from '../row.ts'

/** Enough to keep one server process busy, few enough for a small machine. */
const CONNECTIONS = 64
/** Short, so that the machine's noise falls on both candidates; thousands of requests all the same. */
const SLICE_MS = 250
/** Until the compiler has seen the hot path. */
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
}

export const getSandboxRow: Row = {
  name: 'get-sandbox',
  what: 'GET /v1/sandboxes/{id} of a full row, against a bare Fastify route with the same bytes',
  unit: 'req/s',
  baseline: BASELINE,
  target: TARGET,
  measure: (run) =>
    measureRate(run, { route: '/v1/sandboxes/:id', path: ({ sandboxId }) => `/v1/sandboxes/${sandboxId}` }),
}

type Tenant = Account & { sandboxId: string }

/** Someone with a handful of sandboxes, one of which has everything set. None is in a state that sweeps look after. */
const tenant: Fixture<Tenant> = async (run) => {
  const { databaseUrl } = await run.open(service)
  return withDatabase(databaseUrl, async (db) => {
    const account = await createAccount(db, 'bench-tenant')
    for (const status of ['paused', 'paused', 'error', 'destroyed', 'failed'] as const) {
      await insertSandbox(db, account.id, status)
    }
    const { id } = await insertSandbox(db, account.id, 'paused', FULL_SANDBOX)
    return { ...account, sandboxId: id }
  })
}

const FULL_SANDBOX: Parameters<typeof insertSandbox>[3] = {
  name: 'build-agent-17',
  ip: '100.64.3.17',
  shape: 's-4vcpu-8gb',
  rootfs: 'devbox:1',
  vcpu: 4,
  mem_mib: 8192,
  disk_mib: 81_920,
  ingress_enabled: true,
  auto_pause_after_seconds: 900,
  env_names: ['CI', 'DATABASE_URL', 'GIT_AUTHOR_EMAIL', 'GIT_AUTHOR_NAME', 'NODE_ENV', 'OPENAI_API_KEY', 'TZ'],
  ssh_pubkeys: [
    'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJlbmNobWFya2tleW51bWJlcm9uZW9mdHdvYWFhYWFh ada@laptop',
    'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJlbmNobWFya2tleW51bWJlcnR3b29mdHdvYWFhYWFh ci@runner',
  ],
  egress: ['github.com', '*.githubusercontent.com', 'packages.example.com', 'code.example.org', 'files.example.org'],
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
  const body = await readBody(ours, path, caller)

  const bare = await startBareFastify(endpoint.route, body)
  try {
    const ourUrl = ours.baseUrl + path
    const bareUrl = bare.ready.baseUrl + path
    const send = (url: string, ms: number) => {
      run.signal.throwIfAborted()
      return load({ url, headers: caller.headers, body, connections: CONNECTIONS, ms })
    }

    run.say(`  warming up with ${CONNECTIONS} connections, ${Buffer.byteLength(body)} bytes an answer`)
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

async function readBody(ours: Service, path: string, caller: Account): Promise<string> {
  const answer = await request(ours.baseUrl + path, { headers: caller.headers })
  const body = await answer.body.text()
  if (answer.statusCode !== 200) throw new Error(`GET ${path} answered ${answer.statusCode}: ${body}`)
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
      if (result.failed > 0) throw new Error(`the baseline failed ${result.failed} requests: it is no baseline`)
      return rateOf(result)
    },
  })
  return { ...turns, ok: ok / (ok + failed) }
}

/** Only right answers count. */
const rateOf = ({ ok, elapsedMs }: SliceResult): number => ok / (elapsedMs / 1000)
