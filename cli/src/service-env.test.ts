import assert from 'node:assert/strict'
import path from 'node:path'
import { test } from 'node:test'
import { checkSocketFolder, findSocketFolder, listFiles, serviceEnv } from './service-env.ts'

const EMBEDDED = { databaseUrl: 'postgresql://postgres:none@/warren?host=%2Fdata%2Fpostgres-socket', isExternal: false }
const ENV = {
  PATH: '/usr/bin',
  HOME: '/root',
  AWS_SECRET_ACCESS_KEY: 'secret',
  NODE_AUTH_TOKEN: 'secret',
  PGPASSWORD: 'secret',
  WARREN_API_KEY: 'skp_x',
  WARREN_SECRETS_KEY: 'secret of the control plane',
  WARREN_INTROSPECTION_CLIENT_SECRET: 'secret of the control plane',
  WARREN_GATEWAY_SETTLER_KEY: 'secret of the gateway',
  WARREN_GATEWAY_WALLET_KEY: 'secret of a user',
  WARREN_LOG_LEVEL: 'debug',
}

test('no service gets a secret of another one', () => {
  const names = (service: Parameters<typeof serviceEnv>[0]) => Object.keys(serviceEnv(service, EMBEDDED, ENV)).sort()

  assert.deepEqual(names('control-plane'), [
    ...['DATABASE_URL', 'HOME', 'PATH', 'WARREN_INTROSPECTION_CLIENT_SECRET', 'WARREN_LOG_LEVEL', 'WARREN_SECRETS_KEY'],
  ])
  assert.deepEqual(names('gateway'), ['DATABASE_URL', 'HOME', 'PATH', 'WARREN_GATEWAY_SETTLER_KEY', 'WARREN_LOG_LEVEL'])
})

test('variables of PostgreSQL are for a database of DATABASE_URL', () => {
  const external = { databaseUrl: 'postgres://db.example/warren', isExternal: true }

  assert.equal(serviceEnv('gateway', external, ENV).PGPASSWORD, 'secret')
  assert.equal(serviceEnv('gateway', EMBEDDED, ENV).PGPASSWORD, undefined)
})

test('the development chain gets no credentials of a database', () => {
  const env = {
    ...ENV,
    PGPASSFILE: '/root/.pgpass',
    PGSSLKEY: '/etc/db/client.key',
    DATABASE_URL: 'postgres://db.example/warren?sslkey=/etc/db/client.pem',
    NODE_EXTRA_CA_CERTS: '/etc/ca.pem',
  }

  assert.deepEqual(listFiles('development-chain', env), ['/etc/ca.pem'])
  const names = Object.keys(serviceEnv('development-chain', { databaseUrl: '', isExternal: false }, env)).sort()
  assert.deepEqual(names, ['HOME', 'NODE_EXTRA_CA_CERTS', 'PATH', 'WARREN_LOG_LEVEL'])
})

test('files are named by absolute paths, in settings and in DATABASE_URL', () => {
  const databaseUrl =
    'postgres://warren:p%40ss@db.example:5433/warren?sslmode=verify-full&sslkey=tls/client.key&sslrootcert=/etc/ca.pem'
  const env = serviceEnv('control-plane', { databaseUrl, isExternal: true }, { WARREN_INGRESS_CERT: 'cert.pem' })

  assert.deepEqual(listFiles('control-plane', env), [
    path.resolve('cert.pem'),
    path.resolve('tls/client.key'),
    '/etc/ca.pem',
  ])
  const { password, port, searchParams } = new URL(env.DATABASE_URL!)
  assert.deepEqual([password, port, searchParams.get('sslmode')], ['p%40ss', '5433', 'verify-full'])
})

test('the folder of a socket is found however it is written', () => {
  for (const [url, folder] of [
    [EMBEDDED.databaseUrl, '/data/postgres-socket'],
    ['postgresql:///warren?host=/var/run/postgresql/', '/var/run/postgresql'],
    ['postgres://%2Fvar%2Frun%2Fpostgresql/warren', '/var/run/postgresql'],
    ['postgres://me:hush@127.0.0.1:1/mine', undefined],
    ['postgres://db.example/mine?host=10.0.0.1', undefined],
    ['', undefined],
  ] as const) {
    assert.equal(findSocketFolder(url), folder, url)
  }
})

test('a socket in a folder that programs share is refused', () => {
  for (const folder of ['/tmp', '/tmp/', '/run', '/var/run', '/']) {
    assert.throws(
      () => checkSocketFolder(`postgres://me@/mine?host=${encodeURIComponent(folder)}`, 'DATABASE_URL'),
      /^Error: DATABASE_URL names a socket in \/.*; set unix_socket_directories .* or connect to 127.0.0.1$/,
      folder,
    )
  }
  for (const url of ['postgres://me@/mine?host=/run/postgresql', 'postgres://127.0.0.1/mine', '']) {
    checkSocketFolder(url, 'DATABASE_URL')
  }
})
