/** Checks that the ports of Warren are free or used by Warren itself. */
import { once } from 'node:events'
import { request } from 'node:http'
import { createServer } from 'node:net'
import { text } from 'node:stream/consumers'
import type { Check, CheckResult, Machine } from './check.ts'

const API = { name: 'API port', variable: 'WARREN_PORT', fallback: '8080' } as const
const METRICS = { name: 'metrics port', variable: 'WARREN_METRICS_PORT', fallback: '9464' } as const

/** A running Warren responds much faster. */
const RESPONSE_LIMIT_MS = 1_000

export const portChecks = ({ env }: Pick<Machine, 'env'>): Check[] => [
  { name: API.name, needed: 'required', run: (signal) => checkPort(env, API, signal) },
  { name: METRICS.name, needed: 'required', run: (signal) => checkMetricsPort(env, signal) },
]

async function checkMetricsPort(env: NodeJS.ProcessEnv, signal: AbortSignal): Promise<CheckResult> {
  const port = env[METRICS.variable] || METRICS.fallback
  if (port === (env[API.variable] || API.fallback) && Number(port) !== 0) {
    return { ok: false, detail: `${port} is the API's port`, fix: `set ${METRICS.variable} to another port` }
  }
  return checkPort(env, METRICS, signal)
}

async function checkPort(
  env: NodeJS.ProcessEnv,
  { variable, fallback }: typeof API | typeof METRICS,
  signal: AbortSignal,
): Promise<CheckResult> {
  const value = env[variable] || fallback
  const port = Number(value)
  if (!/^\d+$/.test(value) || port > 65_535) {
    return {
      ok: false,
      detail: `${variable}=${value} is not a port number`,
      fix: `set ${variable} to a number up to 65535`,
    }
  }
  const host = env.WARREN_HOST || '127.0.0.1'
  const where = `${host}:${port}`
  const errorCode = await tryListen(host, port)
  switch (errorCode) {
    case undefined:
      return { ok: true, detail: port === 0 ? `any free port on ${host}` : `${where} is free` }
    case 'EADDRINUSE':
      if (await isWarren(host, port, signal))
        return { ok: true, detail: `${where} is used by the Warren that runs here` }
      return { ok: false, detail: `${where} is used by another program`, fix: `set ${variable} to a free port` }
    case 'EACCES':
      return { ok: false, detail: `${where} needs root`, fix: `set ${variable} to 1024 or higher` }
    default:
      return { ok: false, detail: `${where}: ${errorCode}`, fix: 'set WARREN_HOST to an address of this machine' }
  }
}

/** Listens briefly. Returns the error code if that fails. */
async function tryListen(host: string, port: number): Promise<string | undefined> {
  const server = createServer((socket) => socket.destroy())
  try {
    server.listen({ host, port, exclusive: true })
    await once(server, 'listening')
    server.close()
    await once(server, 'close')
    return undefined
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error)
  }
}

/** The API is recognised by its /healthz, the metrics endpoint by the names of its metrics. */
async function isWarren(host: string, port: number, signal: AbortSignal): Promise<boolean> {
  const [healthz, metrics] = await Promise.all([
    fetchText(host, port, '/healthz', signal),
    fetchText(host, port, '/metrics', signal),
  ])
  return isHealthy(healthz) || /^warren_/m.test(metrics)
}

function isHealthy(body: string): boolean {
  try {
    const response: { status?: unknown; data?: { up?: unknown } } | null = JSON.parse(body)
    return response?.status === 'success' && response.data?.up === true
  } catch {
    // Not JSON, so it is not Warren.
    return false
  }
}

/** The body of the response, or empty if there is none. */
async function fetchText(host: string, port: number, path: string, signal: AbortSignal): Promise<string> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(RESPONSE_LIMIT_MS)])
  try {
    // If Warren listens on all addresses, the loopback address reaches it.
    const address = { '0.0.0.0': '127.0.0.1', '::': '::1' }[host] ?? host
    const sent = request({ host: address, port, path, agent: false, signal: limit }).end()
    const [response] = await once(sent, 'response')
    return await text(response)
  } catch {
    // Another protocol, a closed connection or a timeout: it is not Warren.
    return ''
  }
}
