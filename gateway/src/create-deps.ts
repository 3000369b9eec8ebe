/** Builds `Deps`: once in main.ts and once per test. There is no other dependency injection. */
import { randomUUID } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import type { Log } from '@warren/kit/log'
import { createAppAddress } from './apps/address.ts'
import { createVerifier } from './auth/verifier.ts'
import { createChains } from './chains/chains.ts'
import type { Config } from './config.ts'
import { type Access, createControlPlane } from './control-plane/client.ts'
import type { Database } from './db/connect.ts'
import type { Deps } from './deps.ts'
import { createGatewayAddress } from './http/address.ts'
import { createMetrics } from './observe/metrics.ts'
import { openSecretBox } from './projects/secret-box.ts'
import { openSettler } from './settlements/settler.ts'

type Given = { config: Config; log: Log; database: Database; now?: () => Date }

export async function createDeps(given: Given): Promise<Deps> {
  const { config, database, log } = given
  const secretBox = await openSecretBox(config.dataDir)
  return {
    config,
    log,
    database,
    db: database.db,
    chains: createChains(config, log),
    controlPlane: createControlPlane(await readAccess(config)),
    apps: createAppAddress(config.appsDomain),
    processId: randomUUID(),
    metrics: createMetrics(database),
    address: createGatewayAddress(config),
    settler: await openSettler(config),
    offerKey: secretBox.deriveKey('payment offers'),
    secretBox,
    verifier: await createVerifier(log),
    now: given.now ?? (() => new Date()),
  }
}

/** The control plane has written the file before it listens. Tests of other parts name none, and get an address without a server. */
async function readAccess({ controlPlaneUrl, apiKey, keyFile }: Config): Promise<Access> {
  const key = apiKey || (keyFile === '' ? '' : (await readFile(keyFile, 'utf8')).trim())
  return { baseUrl: (controlPlaneUrl ?? 'http://127.0.0.1:1').replace(/\/+$/, ''), apiKey: key }
}
