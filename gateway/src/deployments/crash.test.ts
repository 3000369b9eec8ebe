/** The gateway is killed at each point of a deployment; the next one carries it on, and nothing is left over. */
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createTestGateway } from '../testing/app.ts'
import { createTestDatabase } from '../testing/database.ts'
import {
  createWalletWithCredit,
  deployFiles,
  deploymentConfig,
  freePort,
  listSandboxes,
  startControlPlane,
  waitForOutcome,
} from '../testing/deployments.ts'
import { startGatewayProcess } from '../testing/gateway-process.ts'

const database = await createTestDatabase()
const controlPlane = await startControlPlane(database)
const gateway = await createTestGateway({ database, config: deploymentConfig(controlPlane) })

/**
 * The fake host's programs share the ports of this machine: the app of the attempt before has the port until a sweep destroys
 * its sandbox, which can be after the next one is started.
 */
const APP = `const server = require('node:http').createServer((_, r) => r.end(require('node:fs').readFileSync('built')))
server.on('error', () => {})
setInterval(() => server.listening || server.listen(process.env.PORT), 100)`

const POINTS = [
  'build.sandbox.intended',
  'build.sandbox.created',
  'build.begun',
  'build.packed',
  'build.stored',
  'deploy.begun',
  'run.sandbox.intended',
  'run.sandbox.created',
  'run.unpacked',
  'run.started',
  'promote.begun',
  'promote.done',
]

test('killed at every point of a deployment: it is ready after the restart, with one sandbox and no second build', async () => {
  for (const point of POINTS) {
    const crashPoints = await mkdtemp(path.join(tmpdir(), 'warren-crash-'))
    after(() => rm(crashPoints, { recursive: true, force: true }))
    await writeFile(path.join(crashPoints, point), 'kill')
    const [wallet, port] = [await createWalletWithCredit(gateway), await freePort()]
    const settings = { port, buildCommand: 'echo result > built', runCommand: 'node app.js' }
    const deployed = await deployFiles(gateway, wallet, { 'app.js': APP }, { settings })

    const doomed = await startGatewayProcess(gateway.deps, crashPoints, { carriesOut: true })
    await doomed.ended
    const next = await startGatewayProcess(gateway.deps, crashPoints, { carriesOut: true })

    const { status, reason } = await waitForOutcome(gateway, wallet, deployed)
    assert.equal(status, 'ready', `after ${point}: ${reason}`)
    await until(
      async () => (await listSandboxes(gateway)).filter(({ name }) => name.includes(deployed.projectId)).length === 1,
      `one sandbox after ${point}`,
    )
    const page = await until(
      () => fetch(`http://127.0.0.1:${port}`).catch(() => undefined),
      `an answer of the app after ${point}`,
    )
    assert.equal((await page.text()).trim(), 'result')
    const { rows } = await gateway.deps.database.pool.query(
      `select count(*)::int as builds from gateway.log_lines where deployment_id = $1 and text like 'build: %'`,
      [deployed.deploymentId],
    )
    const isBuiltTwice = ['build.begun', 'build.packed'].includes(point)
    assert.ok(rows[0].builds <= (isBuiltTwice ? 2 : 1), `${rows[0].builds} builds after ${point}`)
    next.child.kill('SIGKILL')
    await next.ended
  }
})
