/** Something about the project, or its app, that its owner has to change. The text is the reason of the failed deployment. */
export class DeploymentFailure extends Error {
  override name = 'DeploymentFailure'
}
