/**
 * What services report over their channels. A service may have been taken over, and the launcher is root: everything
 * is checked, and a message of another form ends the service, which is then started again.
 */
import { type Static, Type } from 'typebox'

/** Printed by commands whose output a shell runs, so it has no character that means something to one. */
const SafeUrl = Type.String({ maxLength: 2_000, pattern: '^https?://[A-Za-z0-9.:/_~%@+,=\\[\\]-]+$' })
/** With placeholders: `https://<id>-<port>.localhost:8443`. */
const UrlPattern = Type.String({ maxLength: 2_000, pattern: '^https?://[A-Za-z0-9.:/_~%<>-]+$' })
const Port = Type.Integer({ minimum: 0, maximum: 65_535 })
const Text = Type.String({ maxLength: 100_000 })

export const Progress = Type.Object({ progress: Text })
export const Failed = Type.Object({ failed: Text })

export const ControlPlaneReady = Type.Object({ ready: Type.Literal(true) })
export const ControlPlaneListening = Type.Object({
  listening: Type.Literal(true),
  baseUrl: SafeUrl,
  port: Port,
  metricsUrl: SafeUrl,
  ingressUrl: Type.Optional(UrlPattern),
  ingressPort: Type.Optional(Port),
})
export type ControlPlaneUrls = Omit<Static<typeof ControlPlaneListening>, 'listening'>

export const HostAgentReady = Type.Object({
  ready: Type.Literal(true),
  accel: Type.Union([Type.Literal('kvm'), Type.Literal('tcg')]),
})
export const OpenedApiPort = Type.Object({ openedApiPort: Port, failed: Type.Optional(Text) })

export const DevelopmentChainReady = Type.Object({
  ready: Type.Literal(true),
  rpcArbitrum: SafeUrl,
  rpcBase: SafeUrl,
  ports: Type.Array(Port, { maxItems: 16 }),
  payTo: Type.String({ pattern: '^0x[0-9a-fA-F]{40}$' }),
})

export const GatewayReady = Type.Object({
  ready: Type.Literal(true),
  url: SafeUrl,
  port: Port,
  appsUrl: UrlPattern,
  appsPort: Port,
  metricsPort: Port,
})
