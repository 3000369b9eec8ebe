/** The gateway in a separate process, for tests that kill it. It sends its port to the parent when it listens. */
import { type ChildProcess, fork } from 'node:child_process'
import type { AddressInfo } from 'node:net'
import { after } from 'node:test'
import { CRASH_POINTS_VARIABLE } from '@warren/kit/crash-point'
import { createLog } from '@warren/kit/log'
import { buildApp } from '../app.ts'
import { readGatewayConfig } from '../config.ts'
import { createDeps } from '../create-deps.ts'
import { connectDatabase } from '../db/connect.ts'
import { sweepSandboxes } from '../deployments/sweep-sandboxes.ts'
import { startDeployments } from '../deployments/worker.ts'
import type { Deps } from '../deps.ts'
import { reconcileSettlements } from '../settlements/reconcile.ts'
import { startSweeps } from '../sweep.ts'

/** Whether the process also carries deployments out. */
const CARRIES_OUT = 'WARREN_TEST_CARRIES_OUT'

export type GatewayProcess = { child: ChildProcess; url: string; ended: Promise<unknown> }

export async function startGatewayProcess(
  { config }: Pick<Deps, 'config'>,
  crashPoints: string,
  { carriesOut = false } = {},
): Promise<GatewayProcess> {
  const child = fork(import.meta.filename, {
    env: {
      ...process.env,
      // With the test runner's variable the child would behave like a test file.
      NODE_TEST_CONTEXT: undefined,
      DATABASE_URL: config.databaseUrl,
      WARREN_GATEWAY_DATA_DIR: config.dataDir,
      WARREN_GATEWAY_PAY_TO: config.payTo,
      WARREN_GATEWAY_RPC_ARBITRUM: config.rpcArbitrum.join(),
      WARREN_GATEWAY_RPC_BASE: config.rpcBase.join(),
      WARREN_GATEWAY_API_KEY: config.apiKey,
      ...(config.controlPlaneUrl === undefined ? {} : { WARREN_GATEWAY_CONTROL_PLANE_URL: config.controlPlaneUrl }),
      WARREN_GATEWAY_STANDARD_IMAGE: config.standardImage,
      WARREN_GATEWAY_BUILD_SHAPE: config.buildShape,
      WARREN_GATEWAY_RUN_SHAPE: config.runShape,
      WARREN_GATEWAY_LEASE_SECONDS: String(config.leaseSeconds),
      WARREN_GATEWAY_SETTLER_KEY: config.settlerKey,
      [CARRIES_OUT]: String(carriesOut),
      [CRASH_POINTS_VARIABLE]: crashPoints,
    },
  })
  const ended = new Promise((resolve) => child.once('exit', resolve))
  after(() => child.kill('SIGKILL'))
  const port = await new Promise<number>((resolve) =>
    child.once('message', (message) => resolve((message as { port: number }).port)),
  )
  return { child, ended, url: `http://127.0.0.1:${port}` }
}

if (import.meta.main) {
  const config = readGatewayConfig(process.env)
  const log = createLog({ name: 'gateway-process', level: process.env.WARREN_LOG_LEVEL ?? 'fatal', format: 'json' })
  const deps = await createDeps({ config, log, database: connectDatabase(config.databaseUrl, log) })
  const app = await buildApp(deps)
  await app.listen({ host: '127.0.0.1', port: 0 })
  if (process.env[CARRIES_OUT] === 'true') {
    startDeployments(deps)
    startSweeps(deps, [{ ...sweepSandboxes, everyMs: 200 }])
  }
  startSweeps(deps, [{ ...reconcileSettlements, everyMs: 200 }])
  process.send?.({ port: (app.server.address() as AddressInfo).port })
  process.on('disconnect', () => process.exit(0))
}
