/** The statuses of projects and deployments, and what follows from them. */

export type ProjectStatus =
  | 'queued'
  | 'pending'
  | 'building'
  | 'deploying'
  | 'promoting'
  | 'active'
  | 'failed'
  | 'deleting'
export type DeploymentStatus =
  | 'queued'
  | 'pending'
  | 'building'
  | 'deploying'
  | 'promoting'
  | 'active'
  | 'failed'
  | 'cancelled'

/** Projects that use, or will use, the wallet's credit. A project that waits for credit (`pending`) is one of them. */
export const SHARES_CREDIT = ['queued', 'pending', 'building', 'deploying', 'promoting', 'active'] as const
/** Projects whose app is reachable. Only these are charged. */
export const IS_CHARGED = ['promoting', 'active'] as const
/** Deployments that have no outcome yet. */
export const IS_UNFINISHED = ['queued', 'pending', 'building', 'deploying', 'promoting'] as const
